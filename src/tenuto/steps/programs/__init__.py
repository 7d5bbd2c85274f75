"""Step kinds that run a program: executable and PowerShell."""
