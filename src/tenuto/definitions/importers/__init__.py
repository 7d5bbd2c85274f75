"""Definition files from other schedulers: crontab, Celery beat, APScheduler, Airflow."""
