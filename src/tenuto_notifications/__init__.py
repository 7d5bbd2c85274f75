"""Notifications: rules that send a message when something happens. An extension of Tenuto that is installed with it."""
