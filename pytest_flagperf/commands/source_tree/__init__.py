"""Commands that create the folder of a model or a vendor."""
