"""Train ResNet-50 to a top-1 accuracy."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

from common.images import steps
from flagperf_driver.pytorch import Steps, main

import model

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            create_train_data=steps.create_train_data,
            create_eval_data=steps.create_eval_data,
            prepare_batch=steps.prepare_batch,
            calculate_loss=steps.calculate_loss,
            evaluate_batch=steps.evaluate_batch,
            summarize=steps.summarize,
            count_samples=steps.count_samples,
        )
    )
