"""Train a Llama from random weights."""

from flagperf_driver import driver  # noqa: F401, I001 - first: it records the start of the process
from flagperf_driver.pytorch import Steps, main

from common.language import causal

if __name__ == "__main__":
    main(
        Steps(
            create_model=causal.create_model,
            convert_model=causal.convert_model,
            compile_model=causal.compile_model,
            model_to_ddp=causal.model_to_ddp,
            create_train_data=causal.create_train_data,
            create_eval_data=causal.create_eval_data,
            calculate_loss=causal.calculate_loss,
            evaluate_batch=causal.evaluate_batch,
            summarize=causal.summarize,
            count_samples=causal.count_samples,
        )
    )
