"""The toy suite's measurement: no framework, and the events of a real one."""

import time

from flagperf_driver import driver, events, heartbeat

SIZES = (1024, 4096, 16384)


def main(rank):
    config, log = rank.config, rank.log
    log(events.INIT_END, {"device": "toy", "framework_version": "1", "world_size": rank.world.world_size})
    init_time, slow = rank.age(), 0.5 if rank.world.rank == config.slow_rank else 1.0
    for number, size in enumerate(SIZES, 1):
        rank.heartbeat.beat(number, heartbeat.TRAIN)
        time.sleep(config.step_s)
        rate = config.speed * size / SIZES[-1] * slow * (1 + rank.case.seed * 1e-9)
        turns = [{"seconds": size / rate * (1 + 0.01 * k), "own": size / rate, "waited": 0.0} for k in range(8)]
        log(events.MEASURED, {
            "point": f"copy {size}", "values": {"bytes": size}, "figures": {"copy": rate}, "seconds": size / rate,
            "interval": config.interval, "best": size / rate, "sustained": size / rate, "iterations": 100,
            "windows": 100, "steady": True, "drift": None, "sides": None, "clock": "host clock",
            "spent_s": config.step_s, "waited": 0.0, "own": size / rate, "together": False, "turns": turns,
            "facts": {"pages": "small"},
        })  # fmt: skip
    log(events.LEFT_OUT, {"point": "copy 1048576", "values": {"bytes": 1048576}, "expected_s": 60.0})
    end = {"points": len(SIZES), "left_out": 1, "e2e_time": rank.age(), "init_time": init_time, "threads": 1}
    log(events.FINISHED, {**end, "timing": "host clock", "peak_memory_bytes": None})


driver.run(main)
