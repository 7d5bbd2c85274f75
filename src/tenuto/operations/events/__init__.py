"""Operations on events from outside and on approvals."""
