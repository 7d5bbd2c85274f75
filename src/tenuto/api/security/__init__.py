"""What protects the web service: authentication, rate limits, middleware and limits of request heads."""
