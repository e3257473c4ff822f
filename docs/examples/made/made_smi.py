"""Print two simulated devices; the second has no power reading."""

LINE = "+--------+---------+------+-------+-------------------+------+"
print(LINE)
print("| Device | Name    | Temp | Power | Memory            | Util |")
print(LINE)
print("| 0      | Made M1 | 41C  | 23.5W | 512MiB / 16384MiB | 37%  |")
print("| 1      | Made M1 | 38C  | N/A   | 0MiB / 16384MiB   | 0%   |")
print(LINE)
