"""Writers of tiny data directories in the formats of the published data sets, one module for each format.

``write(folder)`` writes what a suite's README lists under "Data", with the published names and types, in less than a
second. The content depends on nothing but the code. The modules run in the suites' environments.
"""
