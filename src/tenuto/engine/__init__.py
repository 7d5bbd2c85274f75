"""The services: worker, scheduler, and the loops inside them. No SQL text, no HTTP; time comes in through a clock."""
