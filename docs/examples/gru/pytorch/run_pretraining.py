"""Train the GRU to a share of correct digits."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process

from flagperf_driver.pytorch import Steps, main

import data
import model

if __name__ == "__main__":
    main(
        Steps(
            create_model=model.create_model,
            create_train_data=data.create_train_data,
            create_eval_data=data.create_eval_data,
            calculate_loss=model.calculate_loss,
            evaluate_batch=model.evaluate_batch,
            summarize=model.summarize,
            count_samples=data.count_samples,
        )
    )
