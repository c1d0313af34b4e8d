"""What caller and worker share: events, subjects, the transport protocol, settings and errors. No I/O."""
