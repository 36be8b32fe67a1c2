"""Predicted rates of trainings on more devices than were measured. Pure: specs and rates in, rates with intervals out."""
