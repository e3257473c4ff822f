"""Reads what ranks and samplers wrote in a round, on hosts and in the controller; Python 3.8, standard library only."""
