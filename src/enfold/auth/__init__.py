"""Authentication: tokens, token files, issuers, challenges, and throttling of failed attempts."""
