"""From side tables of users and items to a store that running services share."""
