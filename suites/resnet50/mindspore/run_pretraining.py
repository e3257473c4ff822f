"""Train ResNet-50 to a top-1 accuracy."""

from flagperf_driver import driver  # noqa: F401 - first: it records the start of the process

from flagperf_driver.mindspore import Steps, main  # isort: skip

import data
import model
import steps
from common.images import sources

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            create_train_data=data.create_train_data,
            create_eval_data=data.create_eval_data,
            prepare_batch=steps.prepare_batch,
            calculate_loss=steps.calculate_loss,
            evaluate_batch=steps.evaluate_batch,
            summarize=sources.summarize,
            count_samples=steps.count_samples,
        )
    )
