-- Keys of people, invitations, and browser sessions that are listed and prolonged by use.

ALTER TABLE tenuto.api_keys
    ADD COLUMN kind text NOT NULL DEFAULT 'service' CHECK (kind IN ('service', 'person', 'initial'));
UPDATE tenuto.api_keys SET kind = 'initial' WHERE name = 'admin' AND created_by = 'tenuto';

ALTER TABLE tenuto.sessions
    ADD COLUMN opened_at    timestamptz,              -- null while it is a login link
    ADD COLUMN last_used_at timestamptz,              -- updated at most once a minute
    ADD COLUMN ends_at      timestamptz,              -- latest end, whatever its use; null in sessions of older versions
    ADD COLUMN address      text,                     -- IP address that opened the session
    ADD COLUMN browser      text;                     -- User-Agent that opened the session
UPDATE tenuto.sessions SET opened_at = created_at, last_used_at = created_at, ends_at = expires_at WHERE token IS NOT NULL;

CREATE TABLE tenuto.invitations (
    id           uuid PRIMARY KEY,
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    role         text NOT NULL CHECK (role IN ('viewer', 'operator', 'editor', 'admin')),
    digest       bytea NOT NULL UNIQUE,               -- SHA-256 of the link
    created_at   timestamptz NOT NULL,
    created_by   text NOT NULL,
    inviter_id   text,                                -- id of the actor; the invitation ends with the key of this id
    expires_at   timestamptz NOT NULL,
    accepted_at  timestamptz,
    key_id       uuid REFERENCES tenuto.api_keys (id), -- key of the person who accepted it
    revoked_at   timestamptz,
    revoked_by   text
);
CREATE UNIQUE INDEX invitations_one_open_per_name ON tenuto.invitations (name)
    WHERE accepted_at IS NULL AND revoked_at IS NULL;
CREATE INDEX invitations_by_end ON tenuto.invitations (expires_at);
