"""Train ResNet-50 to a top-1 accuracy."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

from common import classification
from flagperf_driver.pytorch import Steps, main

import model

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            create_train_data=classification.create_train_data,
            create_eval_data=classification.create_eval_data,
            prepare_batch=classification.prepare_batch,
            calculate_loss=classification.calculate_loss,
            evaluate_batch=classification.evaluate_batch,
            summarize=classification.summarize,
            count_samples=classification.count_samples,
            create_optimizer=model.create_optimizer,
            create_scheduler=classification.create_scheduler,
        )
    )
