-- name: find_primary_position
-- Return the end of the log of the primary: all commits that any session sees are before it. A position right after
-- the header of a page is that page, as the standby counts.
SELECT system.system_identifier AS system,
       ('x' || substr(pg_walfile_name(position.lsn), 1, 8))::bit(32)::integer AS timeline,
       CASE WHEN position.bytes % 8192 IN (24, 40) THEN position.bytes - position.bytes % 8192
            ELSE position.bytes END AS position
FROM pg_control_system() AS system,
     (SELECT found.lsn, (found.lsn - '0/0'::pg_lsn)::bigint AS bytes
      FROM (SELECT pg_current_wal_insert_lsn() AS lsn) AS found) AS position;

-- name: find_replica_position
-- Return up to where a standby has replayed the log, and which server it is.
SELECT pg_is_in_recovery() AS is_standby,
       system.system_identifier AS system,
       -- The first is hidden from roles without pg_read_all_stats; the second is that of the last checkpoint.
       coalesce((SELECT received_tli FROM pg_stat_wal_receiver), control.timeline_id) AS timeline,
       coalesce(pg_last_wal_replay_lsn() - '0/0'::pg_lsn, 0)::bigint AS position,
       concat_ws(' ', inet_server_addr(), inet_server_port(), pg_postmaster_start_time()) AS server
FROM pg_control_system() AS system, pg_control_checkpoint() AS control;
