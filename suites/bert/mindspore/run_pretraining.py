"""Pretrain BERT on masked tokens and next-sentence prediction."""

from flagperf_driver import driver  # noqa: F401 - first: it records the start of the process

from flagperf_driver.mindspore import Steps, main  # isort: skip

import model
from common.language import pretraining

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            create_train_data=pretraining.create_train_data,
            create_eval_data=pretraining.create_eval_data,
            calculate_loss=model.calculate_loss,
            evaluate_batch=model.evaluate_batch,
            summarize=pretraining.summarize,
            count_samples=pretraining.count_samples,
            count_tokens=pretraining.count_tokens,
        )
    )
