"""Reads what ranks, samplers and hosts wrote in a round."""
