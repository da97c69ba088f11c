"""The whole program in one process with simulated time, network and store: a run follows from its seed."""
