"""The engine that runs rounds as training jobs of Huawei Cloud ModelArts, and its parts."""
