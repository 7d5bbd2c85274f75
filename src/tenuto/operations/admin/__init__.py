"""Operations of administration: API keys, secrets, audit log, named logs, backups and the doctor."""
