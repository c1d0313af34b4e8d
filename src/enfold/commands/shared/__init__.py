"""What commands share: targets, options, callers, records, tasks, the log, signals, and what is printed. No command is here."""
