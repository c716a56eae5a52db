"""Episodes on disk: store, doctor, the frame cache and the sampler that training reads, exchange with LeRobotDataset.

Dependency law: numpy and numcodecs; lerobot only inside the functions of the exchange.
"""
