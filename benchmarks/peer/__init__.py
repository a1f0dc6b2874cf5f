"""KappaMQ and Apache RocketMQ under the same load, on the same machine, in turns."""
