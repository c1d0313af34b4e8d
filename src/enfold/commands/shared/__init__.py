"""What commands share. No command is here."""
