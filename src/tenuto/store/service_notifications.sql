-- name: notify_services
-- Notify the services: "queued mail", "queued mail -5" (new task with this rank), "limited mail" (task with a limit
-- key), "scheduled mail", "cancel <worker id>", "limits".
SELECT pg_notify('tenuto', notification)
FROM unnest($1::text[]) AS notification;
