"""What all shapes on A100 share. The original's figures are of "fp32", which was TF32 there: by name here."""

vendor = "nvidia"
precision = "tf32"
channels_last = True
cudnn_benchmark = True
num_workers = 8
eval_batch_size = 256
