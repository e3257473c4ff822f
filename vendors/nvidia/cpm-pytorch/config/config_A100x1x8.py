expected_time_s = 1641  # FlagPerf's published e2e_time
