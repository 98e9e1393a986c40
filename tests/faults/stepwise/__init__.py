"""A model of histories, and processes of the product that are taken through them step by step."""
