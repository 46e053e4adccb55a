"""What --data can name: packages of camera traps."""
