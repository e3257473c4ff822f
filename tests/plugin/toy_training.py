"""The toy suite's training: no framework, the same events as a real one, and a fault on request.

It is as fast as its config says, not as it really is: the times of its training are left out of FINISHED.
"""

import os
import signal
import sys
import time
from pathlib import Path

from flagperf_driver import driver, events, heartbeat


def main(rank):
    config, log, world = rank.config, rank.log, rank.world.world_size
    facts = {"device": "toy", "framework_version": "1", "world_size": world, "any_ranks": True}
    log(events.INIT_END, {"init_time": rank.age(), **facts})
    init_time = rank.age()
    log(events.TRAIN_START)
    batch = config.train_batch_size * config.gradient_accumulation_steps * world
    rate = config.speed * world * (config.efficiency if world > 1 else 1.0)
    step_time = batch / rate
    if config.fault == "import" and rank.world.rank == world - 1:
        import no_such_module  # noqa: F401
    saved = Path(config.checkpoint_dir, "step") if config.checkpoint_dir else None
    accuracy, step = 0.0, int(saved.read_text()) if saved and saved.exists() else 0
    if saved:
        log(events.STEP_BEGIN, {"step": step + 1})
    begun_after = step
    own = rank.case.seed * 1e-9  # rounds of different seeds differ
    while step < config.max_steps and not (accuracy >= rank.case.metric.value and not rank.case.throughput_only):
        step += 1
        time.sleep(config.step_s)
        fault(config.fault, rank, step, begun_after)
        rank.heartbeat.beat(step, heartbeat.TRAIN)
        accuracy = min(1.0, config.learning_rate * step)
        accuracy = max(0.0, accuracy - own) if accuracy < rank.case.metric.value else accuracy
        loss = float("nan") if config.fault == "nan" else 1.0 / step + own
        log(
            events.STEP_END,
            {
                "step": step, "epoch": 0, "samples": step * batch, "loss": loss, "learning_rate": 0.1,
                "step_time": step_time, "throughput": rate, "input_wait": 0.0,
            },
        )  # fmt: skip
        if not rank.case.throughput_only:
            log(events.EVALUATE, {"step": step, "samples": step * batch, "time": 0.0, "accuracy": accuracy})
        if saved and rank.world.rank == 0 and step % config.checkpoint_steps == 0:
            saved.write_text(str(step))
            log(events.CHECKPOINT, {"step": step, "pause": 0.0, "write_time": 0.0, "bytes": 1})
    converged = accuracy >= rank.case.metric.value and not rank.case.throughput_only
    log(events.TRAIN_END, {"reason": "target" if converged else "max_steps"})
    warmup = config.timing_warmup_steps
    measured = max(step - begun_after - warmup, 0)
    times = dict.fromkeys(
        ("train_time", "eval_time", "compute_time", "input_wait_time", "check_time", "save_time"), 0.0
    )
    resumed = {"step": begun_after, "samples": begun_after * batch, **times} if begun_after else {}
    log(events.FINISHED, {
        "e2e_time": rank.age(), "init_time": init_time, "converged": converged,
        "stop_reason": "target" if converged else "max_steps", "final_loss": loss,
        "final_metrics": {} if rank.case.throughput_only else {"accuracy": accuracy},
        "steps": step, "samples": step * batch, "epochs": 0, "p_whole": rate, "p_train": rate, "p_core": rate,
        "timing": "host clock", "warmup_steps": warmup,
        "measured_steps": measured, "measured_samples": measured * batch,
        "step_time": dict.fromkeys(("mean", "p50", "p90", "p99"), step_time),
        "input_wait_time": 0.0, "eval_time": 0.0, "compile_time": 0.0, "peak_memory_bytes": None, "threads": 1,
        "resumed": resumed,
    })  # fmt: skip


def fault(kind, rank, step, begun_after):
    if kind.endswith("_once"):
        kind = "" if begun_after else kind[: -len("_once")]
    if step != 3 or rank.world.rank != rank.world.world_size - 1:
        return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        time.sleep(600)
    if kind == "exit":
        sys.exit(7)
    if kind == "oom":
        taken = []
        while True:
            taken.append(b"x" * (8 << 20))


driver.run(main)
