"""Step kinds that come with Tenuto: executable, PowerShell, SQL, HTTP call and log append."""
