"""Train Wav2Vec2 to find the right frame among wrong ones."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch import Steps, main

import data
import loss
import model

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            compile_model=model.compile_model,
            create_train_data=data.create_train_data,
            create_eval_data=data.create_eval_data,
            calculate_loss=loss.calculate_loss,
            evaluate_batch=loss.evaluate_batch,
            summarize=loss.summarize,
            count_samples=data.count_samples,
        )
    )
