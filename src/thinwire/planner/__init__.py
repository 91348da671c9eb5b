"""Link measurement: latency and bandwidth between ranks, and whether compression is likely to pay."""
