"""The double of NVIDIA's library: `fake_nvml.c` built by `build`, its table written by `Table`."""
