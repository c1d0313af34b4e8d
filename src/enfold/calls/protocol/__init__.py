"""What both ends agree on: events, subjects, the port of transports, settings and how calls end. No I/O."""
