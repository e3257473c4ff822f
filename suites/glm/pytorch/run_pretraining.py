"""Train GLM on multi-token cloze questions."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch import Steps, main

import data
import model
from common.language import networks

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            compile_model=networks.compile_model,
            create_train_data=data.train,
            create_eval_data=data.evaluation,
            calculate_loss=data.calculate_loss,
            evaluate_batch=data.evaluate_batch,
            summarize=data.summarize,
            count_samples=data.count_samples,
            count_tokens=data.count_tokens,
        )
    )
