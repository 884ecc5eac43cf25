"""One file per algorithm family: `Args`, the network and `train(args, run)`. They do not import each other."""
