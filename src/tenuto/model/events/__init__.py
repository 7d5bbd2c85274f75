"""Events from outside and approvals: values and decisions."""
