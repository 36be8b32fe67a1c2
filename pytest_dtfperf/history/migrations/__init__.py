"""Migrations of older histories to this version, for Alembic."""
