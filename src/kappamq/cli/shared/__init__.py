"""What commands share: options, output, exit codes, times, how a cluster is reached and a message is shown."""
