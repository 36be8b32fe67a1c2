"""How histories of older versions become what they are today, for Alembic."""
