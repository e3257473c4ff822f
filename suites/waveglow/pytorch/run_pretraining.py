"""Train WaveGlow to a likelihood of speech."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch import Steps, main

import data
import model

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            compile_model=model.compile_model,
            create_train_data=data.create_train_data,
            create_eval_data=data.create_eval_data,
            prepare_batch=data.prepare_batch,
            calculate_loss=data.calculate_loss,
            evaluate_batch=data.evaluate_batch,
            summarize=data.summarize,
            count_samples=data.count_samples,
        )
    )
