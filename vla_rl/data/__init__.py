"""Episodes on disk: the store, the frame cache that training reads, the sampler, the doctor, and exchange with LeRobotDataset. numpy and zarr only."""
