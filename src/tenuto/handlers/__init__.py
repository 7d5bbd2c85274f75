"""What runs: jobs, their typed input, how their code is started, stopped and listened to. No SQL, no claiming."""
