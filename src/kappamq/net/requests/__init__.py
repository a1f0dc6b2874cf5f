"""From a frame to a handler's call and its answer, for all servers: sizes, fairness, long work beside the loop, the watch over it."""
